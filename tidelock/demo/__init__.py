"""The demo: what it declares, who sends to it, who is told."""
