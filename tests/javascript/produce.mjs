// Sends the events of a JSON array as npm's cloudevents sends them when nobody says how, which is in binary form, and
// prints what each is answered. `bytes` of an event, in base64, are its data.
// node produce.mjs URL '[{"type": "...", ...}]'
import { CloudEvent, emitterFor, httpTransport } from 'cloudevents';

const [url, events] = process.argv.slice(2);
const emit = emitterFor(httpTransport(`${url}/v1/events`));
for (const { bytes, ...event } of JSON.parse(events)) {
  const data = bytes === undefined ? event.data : Uint8Array.from(Buffer.from(bytes, 'base64'));
  const { body } = await emit(new CloudEvent({ ...event, data }));
  console.log(body);
}
