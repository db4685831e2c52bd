import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { hosts } from '../harness/hosts.js';
import { receive, scenario } from '../harness/scenario.js';

const run = promisify(execFile);
const client = fileURLToPath(new URL('../harness/tls_client.js', import.meta.url));

/** Sends and receives one message over TLS, trusting the certificates in the file. */
async function roundTrip(endpoint, body, roots) {
  const { GRPC_DEFAULT_SSL_ROOTS_FILE_PATH: _, ...env } = process.env;
  if (roots) env.GRPC_DEFAULT_SSL_ROOTS_FILE_PATH = roots;
  const { stdout } = await run(process.execPath, [ client, endpoint, 'orders', 'readers', body ], { env, timeout: 60_000 });
  return JSON.parse(stdout);
}

const trusted = 'TLS and cleartext clients share one port, and the self-signed certificate can be trusted';
if (hosts) test(trusted, { skip: 'several proxies have several, and a client can trust one of that name' });
else scenario(trusted, {}, async s => {
  await s.server.createTopic('orders');
  const roots = path.join(s.server.dataDir, 'tls-self-signed.pem');

  for (const host of [ 'localhost', '127.0.0.1' ]) {
    assert.deepEqual(await roundTrip(`${host}:${s.server.port}`, `to ${host}`, roots), { body: `to ${host}` });
  }

  const consumer = await s.simpleConsumer('auditors', 'orders');
  const views = await receive(consumer, 2);
  assert.deepEqual(views.map(v => v.body.toString()).sort(), [ 'to 127.0.0.1', 'to localhost' ]);
});

scenario('a client that does not trust the certificate refuses the connection', {}, async s => {
  await s.server.createTopic('orders');

  const { error } = await roundTrip(s.server.endpoint, 'refused');

  assert.match(error, /UNAVAILABLE|certificate/i);
  assert.ok((await s.server.queueSizes('orders')).every(size => size === 0), 'nothing is stored');
});

const dir = await mkdtemp(path.join(tmpdir(), 'perigee-node-tls-'));
after(() => rm(dir, { recursive: true, force: true }));
const cert = path.join(dir, 'cert.pem');
const key = path.join(dir, 'key.pem');

const made = await run('openssl', [
  'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
  '-subj', '/CN=queue.example', '-addext', 'subjectAltName=DNS:localhost', '-keyout', key, '-out', cert,
]).then(() => true, err => {
  if (err.code !== 'ENOENT') throw err;
  return false;
});

const name = "the operator's certificate is served, and required TLS refuses cleartext";
if (!made) {
  test(name, { skip: 'openssl is not installed' });
} else {
  scenario(name, { '--tls-cert': cert, '--tls-key': key, '--tls-mode': 'required' }, async s => {
    await s.server.command('topic', 'create', 'orders', '--tls', '--insecure');

    assert.deepEqual(await roundTrip(`localhost:${s.server.port}`, 'trusted', cert), { body: 'trusted' });
    assert.match((await roundTrip(s.server.endpoint, 'wrong host', cert)).error, /UNAVAILABLE|certificate|altnames/i);
    await assert.rejects(s.producer({ topics: [ 'orders' ] }));
  });
}
