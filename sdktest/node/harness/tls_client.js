// One message there and back over TLS. The SDK has no option for certificates:
// its gRPC library reads them when it is loaded, from the file that the
// environment names, so that this needs a process of its own.
//
//   node tls_client.js ENDPOINT TOPIC GROUP BODY

import { Producer, SimpleConsumer } from './sdk.js';

const [ endpoints, topic, consumerGroup, body ] = process.argv.slice(2);
const quiet = { info() {}, warn() {}, error() {} };
const common = { endpoints, sslEnabled: true, logger: quiet };

const producer = new Producer({ ...common, topics: [ topic ] });
const consumer = new SimpleConsumer({ ...common, consumerGroup, subscriptions: new Map([ [ topic, '*' ] ]), awaitDuration: 5000 });

try {
  await producer.startup();
  await producer.send({ topic, body: Buffer.from(body) });
  await consumer.startup();
  const views = [];
  for (let tries = 0; views.length === 0 && tries < 4; tries++) views.push(...await consumer.receive(1, 10_000));
  await consumer.ack(views[0]);
  console.log(JSON.stringify({ body: views[0].body.toString() }));
} catch (err) {
  let cause = err;
  while (cause.cause) ({ cause } = cause);
  console.log(JSON.stringify({ error: cause.message }));
}
process.exit();
