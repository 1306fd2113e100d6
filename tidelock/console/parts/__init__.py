"""What pages are made of: texts, tables, forms, charts and times.

In come values as the API answers them; out go elements of NiceGUI in the theme's look. A part never knows which page it
is on.
"""
