"""HTTP, below every route: connections and their limits, access, and the form of errors.

In come sockets and requests; out go grants, checked parameters and responses of one form. It never knows what a route
is about: routes are in `api/` and `graphql/`.
"""
