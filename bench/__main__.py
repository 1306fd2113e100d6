"""`python -m bench NAME`, in a checkout: measures one part of Tidelock."""

from bench.commands import app

if __name__ == "__main__":
    app(prog_name="python -m bench")
