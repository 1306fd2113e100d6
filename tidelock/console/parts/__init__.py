"""What pages are made of: texts, tables, forms, charts and times.

A part takes values from the API and builds NiceGUI elements in the theme's look. It never knows which page it is on.
"""
