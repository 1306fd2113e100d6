-- name: digests
-- Where some commits end, and their digests in hexadecimal digits.
SELECT commit_id, last_sequence, encode(digest, 'hex')::bytea FROM commits WHERE commit_id BETWEEN %s AND %s;
