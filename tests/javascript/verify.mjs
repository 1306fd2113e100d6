// Verifies webhooks as npm's standardwebhooks does: a JSON array of {secret, body, headers} comes in, one verdict each
// goes out: the payload, or what is wrong.
import { Webhook } from "standardwebhooks";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const verdicts = JSON.parse(Buffer.concat(chunks)).map(({ secret, body, headers }) => {
  try {
    return { payload: new Webhook(secret).verify(body, headers) };
  } catch (error) {
    return { refused: error.message };
  }
});
console.log(JSON.stringify(verdicts));
