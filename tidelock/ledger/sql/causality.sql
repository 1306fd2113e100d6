-- name: find_originals
-- The sequences of recorded identities.
SELECT digest, ingress_sequence FROM identities WHERE digest = ANY(%s);
