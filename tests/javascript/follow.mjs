// Follows tables by graphql-ws or graphql-sse, for ever, and prints what is new to it as lines of JSON.
// node follow.mjs ws|sse URL '{"table": {"query": "...", "key": ["column", ...]}}'
import * as sse from 'graphql-sse';
import * as ws from 'graphql-ws';
import WebSocket from 'ws';

const [way, url, tables] = process.argv.slice(2);
const again = { retryAttempts: Infinity, retry: () => new Promise((resolve) => setTimeout(resolve, 300)) };
const client =
  way === 'ws'
    ? ws.createClient({ url: `${url.replace('http', 'ws')}/graphql`, webSocketImpl: WebSocket, shouldRetry: () => true, ...again })
    : sse.createClient({ url: `${url}/graphql`, ...again });

for (const [table, { query, key }] of Object.entries(JSON.parse(tables))) {
  const times = new Map();
  const variables = { after: null };
  client.subscribe(
    { query, variables },
    {
      next({ data, errors }) {
        if (errors) throw new Error(JSON.stringify(errors));
        const event = data[table];
        const name = JSON.stringify(['tenant_id', ...key].map((column) => event.data[column]));
        const time = BigInt(event.ts_timestamp);
        if (time <= (times.get(name) ?? 0n)) return;
        times.set(name, time);
        variables.after = event.ts_timestamp;
        console.log(JSON.stringify({ table, event }));
      },
      error(error) {
        console.error(table, error);
        process.exit(1);
      },
      complete() {
        console.error(table, 'was completed');
        process.exit(1);
      },
    },
  );
}
