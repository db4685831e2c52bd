// The SDK under test. It logs to a file in the home directory unless told
// otherwise, and some of its parts cannot be told.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

if (!process.env.PERIGEE_TEST_HOME) {
  const home = mkdtempSync(path.join(tmpdir(), 'perigee-node-home-'));
  process.env.PERIGEE_TEST_HOME = home; // for the processes that a test starts
  process.once('exit', () => rmSync(home, { recursive: true, force: true }));
}
process.env.HOME = process.env.PERIGEE_TEST_HOME;
process.env.USERPROFILE = process.env.PERIGEE_TEST_HOME;

const sdk = await import('rocketmq-client-nodejs');

// The numbers of filter types are not among the SDK's exports.
const { default: definitions } = await import('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js');
export const { FilterType } = definitions;

export const {
  ConsumeResult, FilterExpression, LitePushConsumerImpl, NotFoundException, OffsetOption, Producer, PushConsumer, SimpleConsumer,
} = sdk;
