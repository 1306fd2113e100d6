"""The commands, by noun. They get what they work on from the composition, which is above them."""
