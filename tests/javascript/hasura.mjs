// Asks once by graphql-ws, set up as Hasura's documents say: the key among `headers` of connectionParams, and variables
// that are left undefined where nothing is asked of them. Prints what comes, one line each, until enough came.
// node hasura.mjs URL KEY QUERY COUNT
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';

const [url, key, query, count] = process.argv.slice(2);
const client = createClient({
  url: `${url.replace('http', 'ws')}/graphql`,
  webSocketImpl: WebSocket,
  connectionParams: async () => ({ headers: { Authorization: `Bearer ${key}` } }),
  retryAttempts: 0,
});
const variables = { least: undefined };
let left = Number(count);
for await (const message of client.iterate({ query, variables })) {
  console.log(JSON.stringify(message));
  if (--left === 0) break;
}
await client.dispose();
