"""The Python client: what programs beside Tidelock need of it. It loads neither Spark nor a server."""

from tidelock.triggers.signatures import InvalidSignature
from tidelock.triggers.signatures import verify as verify_webhook

__all__ = ["InvalidSignature", "verify_webhook"]
