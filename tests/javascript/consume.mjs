// Reads a topic from its beginning with KafkaJS as npm installs it, and prints the values of its first messages.
// node consume.mjs BROKER TOPIC COUNT
import { Kafka, logLevel } from 'kafkajs';

const [broker, topic, count] = process.argv.slice(2);
const consumer = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR }).consumer({ groupId: `kafkajs-${topic}` });
let left = Number(count);
const all = new Promise((resolve, reject) => {
  consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
  consumer
    .connect()
    .then(() => consumer.subscribe({ topic, fromBeginning: true }))
    .then(() =>
      consumer.run({
        eachMessage: async ({ message }) => {
          if (left > 0) console.log(message.value.toString());
          if (--left === 0) resolve();
        },
      }),
    )
    .catch(reject);
});
await all;
await consumer.disconnect();
