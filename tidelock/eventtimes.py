"""Event-time types, for plugins: `register` yours with `eventtime_types`, in a module that the setting `plugins` names.

See `tidelock.fold.eventtimes` for what a parser is.
"""

from tidelock.fold.eventtimes import EventtimeTypeRegistry, Parser, eventtime_types

__all__ = ["EventtimeTypeRegistry", "Parser", "eventtime_types"]
