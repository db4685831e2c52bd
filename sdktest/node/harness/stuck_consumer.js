// A push consumer that never finishes the messages it gets: it prints the body of
// each and keeps it.
//
//   node stuck_consumer.js ENDPOINT TOPIC GROUP

import { PushConsumer } from './sdk.js';

const [ endpoints, topic, consumerGroup ] = process.argv.slice(2);

const consumer = new PushConsumer({
  endpoints,
  consumerGroup,
  subscriptions: new Map([ [ topic, '*' ] ]),
  logger: { info() {}, warn() {}, error() {} },
  messageListener: {
    consume: view => {
      console.log(view.body.toString());
      return new Promise(() => {});
    },
  },
});
await consumer.startup();
