// Calls that the SDK does not make, with the SDK's own stubs.

import { createRequire } from 'node:module';
import { promisify } from 'node:util';

const require = createRequire(import.meta.url);
const sdk = createRequire(require.resolve('rocketmq-client-nodejs'));
const grpc = sdk('@grpc/grpc-js');
const definition = sdk('../proto/apache/rocketmq/v2/definition_pb.js');
const service = sdk('../proto/apache/rocketmq/v2/service_pb.js');
const { Timestamp } = sdk('google-protobuf/google/protobuf/timestamp_pb.js');
const { Duration } = sdk('google-protobuf/google/protobuf/duration_pb.js');
const { MessagingServiceClient } = sdk('../proto/apache/rocketmq/v2/service_grpc_pb.js');

/** Does something with a client of the service, and a function that makes one of its calls. */
async function withStub(endpoint, fn) {
  const client = new MessagingServiceClient(endpoint, grpc.credentials.createInsecure());
  const metadata = new grpc.Metadata();
  metadata.set('x-mq-client-id', 'raw');
  try {
    return await fn(async (method, request) => {
      const response = await promisify(client[method].bind(client))(request, metadata);
      const status = response.getStatus();
      if (status.getCode() !== definition.Code.OK) throw new Error(`${status.getCode()}: ${status.getMessage()}`);
      return response;
    }, client, metadata);
  } finally {
    client.close();
  }
}

/** The offset calls for queue 0 of a topic and a group. */
export class Offsets {
  #endpoint;
  #topic;
  #group;

  constructor(endpoint, topic, group) {
    this.#endpoint = endpoint;
    this.#topic = topic;
    this.#group = group;
  }

  #queue() {
    return new definition.MessageQueue().setTopic(new definition.Resource().setName(this.#topic)).setId(0);
  }

  #name() {
    return new definition.Resource().setName(this.#group);
  }

  async #call(method, request) {
    return await withStub(this.#endpoint, call => call(method, request));
  }

  /** Where the queue begins or ends, or the first message of a time is. */
  async query(policy, date) {
    const request = new service.QueryOffsetRequest().setMessageQueue(this.#queue()).setQueryOffsetPolicy(definition.QueryOffsetPolicy[policy]);
    if (date) request.setTimestamp(Timestamp.fromDate(date));
    return (await this.#call('queryOffset', request)).getOffset();
  }

  async get() {
    return (await this.#call('getOffset', new service.GetOffsetRequest().setGroup(this.#name()).setMessageQueue(this.#queue()))).getOffset();
  }

  async set(offset) {
    await this.#call('updateOffset', new service.UpdateOffsetRequest().setGroup(this.#name()).setMessageQueue(this.#queue()).setOffset(offset));
  }

  /** The bodies from an offset on, and the next offset. */
  async pull(offset) {
    const request = new service.PullMessageRequest().setGroup(this.#name()).setMessageQueue(this.#queue()).setOffset(offset)
      .setBatchSize(32).setFilterExpression(new definition.FilterExpression().setType(definition.FilterType.TAG).setExpression('*'))
      .setLongPollingTimeout(new Duration().setSeconds(1));
    return await withStub(this.#endpoint, async (_call, client, metadata) => {
      const got = { bodies: [], next: undefined };
      for await (const frame of client.pullMessage(request, metadata)) {
        if (frame.hasMessage()) got.bodies.push(Buffer.from(frame.getMessage().getBody_asU8()).toString());
        if (frame.hasNextOffset()) got.next = frame.getNextOffset();
      }
      return got;
    });
  }
}

/** Sends a body that is compressed already, and says so. */
export async function sendEncoded(endpoint, topic, body) {
  await withStub(endpoint, async call => {
    const system = new definition.SystemProperties()
      .setMessageId('01000000000000000000000000000000AB')
      .setMessageType(definition.MessageType.NORMAL)
      .setBodyEncoding(definition.Encoding.GZIP)
      .setBornHost('here');
    const message = new definition.Message()
      .setTopic(new definition.Resource().setName(topic)).setSystemProperties(system).setBody(body);
    await call('sendMessage', new service.SendMessageRequest().setMessagesList([ message ]));
  });
}
