"""The command `tidelock`, which is also `python -m tidelock`."""

import sys

_WRONG_USE = 2


def main() -> None:
    try:
        from tidelock.cli.main import main as run
    except ModuleNotFoundError as missing:
        # The base install is the client; the error for a missing server should name more than a module.
        print(
            f"Error: the command needs the server, and {missing.name} is not installed: pip install 'tidelock[server]'",
            file=sys.stderr,
        )
        raise SystemExit(_WRONG_USE) from None
    run()


if __name__ == "__main__":
    main()
