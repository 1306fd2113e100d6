"""`python -m tidelock` is the command `tidelock`."""

from tidelock.cli import main

main()
