"""The pages, one a module.

In comes a visit, with its API and its query; out goes one page inside the frame. A page never reads the database, and
never knows whose key it asks with.
"""
