import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { oneShard, scenario } from '../harness/scenario.js';

const run = promisify(execFile);
const here = name => fileURLToPath(new URL(name, import.meta.url));

scenario('the example of the README works as it stands', {}, async s => {
  await s.server.createTopic('hello');
  const readme = await readFile(here('../../../README.md'), 'utf8');
  const [ , example ] = readme.match(/<!-- example: node -->\n```js\n(.*?)```/s);
  const folder = await mkdtemp(path.join(tmpdir(), 'readme-'));
  s.onEnd(() => rm(folder, { recursive: true, force: true }));
  await symlink(here('../node_modules'), path.join(folder, 'node_modules'));
  const file = path.join(folder, 'example.mjs');
  await writeFile(file, example.replace('127.0.0.1:8081', s.server.endpoint));

  const { stdout } = await run(process.execPath, [ file ], { env: { ...process.env, HOME: folder }, timeout: 60_000 });

  assert.match(stdout, /^sent \w+$/m);
  assert.match(stdout, /^received hello from Node\.js$/m);
}, oneShard); // the example receives once
