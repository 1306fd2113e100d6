"""Views: filtered views of the tables' changes, as long as they have subscribers.

In come the fold's tables, their change log and filters; out go rows as of one moment and, per subscriber, a bounded
queue of row events. A view never knows who its subscribers are, or which protocol they use.
"""
