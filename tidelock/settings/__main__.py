"""`python -m tidelock.settings` prints the reference page."""

from tidelock.settings.reference import settings_page

print(settings_page(), end="")
