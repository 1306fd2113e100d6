"""The pages, one a module.

A page takes a visit, with its API and query, and builds one page inside the frame. It never reads the database and
never knows the visitor's key.
"""
