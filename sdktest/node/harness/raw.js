// Calls that the SDK does not make, with the SDK's own stubs.

import { createRequire } from 'node:module';
import { promisify } from 'node:util';

const require = createRequire(import.meta.url);
const sdk = createRequire(require.resolve('rocketmq-client-nodejs'));
const grpc = sdk('@grpc/grpc-js');
const definition = sdk('../proto/apache/rocketmq/v2/definition_pb.js');
const service = sdk('../proto/apache/rocketmq/v2/service_pb.js');
const { MessagingServiceClient } = sdk('../proto/apache/rocketmq/v2/service_grpc_pb.js');

/** Sends a body that is compressed already, and says so. */
export async function sendEncoded(endpoint, topic, body) {
  const client = new MessagingServiceClient(endpoint, grpc.credentials.createInsecure());
  try {
    const system = new definition.SystemProperties()
      .setMessageId('01000000000000000000000000000000AB')
      .setMessageType(definition.MessageType.NORMAL)
      .setBodyEncoding(definition.Encoding.GZIP)
      .setBornHost('here');
    const message = new definition.Message()
      .setTopic(new definition.Resource().setName(topic)).setSystemProperties(system).setBody(body);
    const metadata = new grpc.Metadata();
    metadata.set('x-mq-client-id', 'raw');
    const response = await promisify(client.sendMessage.bind(client))(new service.SendMessageRequest().setMessagesList([ message ]), metadata);
    const status = response.getStatus();
    if (status.getCode() !== definition.Code.OK) throw new Error(`${status.getCode()}: ${status.getMessage()}`);
  } finally {
    client.close();
  }
}
