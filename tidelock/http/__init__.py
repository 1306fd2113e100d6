"""HTTP, below every route: connections and their limits, who asks, and what an error looks like.

In come sockets and requests; out go grants, checked parameters and answers of one form. It never knows what a route is
about: routes are in `api/` and `graphql/`.
"""
