"""Pages of reference that are made from what they describe: the commands' help, the API's document."""
