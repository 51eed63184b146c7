// The same as python/sdk_check.py with the official client for Node.
//
// usage: node openai.mjs BASE_URL
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'unused', maxRetries: 0, timeout: 20_000 });
const messages = [{ role: 'user', content: 'Who?' }];
const greeting = 'Hello there, friend.';
const ada = { name: 'Ada', age: 36 };
const person = zodResponseFormat(z.object({ name: z.string(), age: z.number() }), 'person');
const tool = (name, properties) => ({
  type: 'function',
  function: { name, strict: true, parameters: { type: 'object', properties, required: Object.keys(properties), additionalProperties: false } },
});
const tools = [tool('get_weather', { city: { type: 'string' } }), tool('get_time', {})];
const calls = [['get_weather', { city: 'Oslo' }], ['get_weather', { city: 'Zürich "HB"' }], ['get_time', {}]];
const called = (message) => message.tool_calls.map((c) => [c.function.name, c.function.parsed_arguments ?? JSON.parse(c.function.arguments)]);

const checks = {
  async text() {
    const answer = await client.chat.completions.create({ model: 'chat', messages });
    assert.equal(answer.choices[0].message.content, greeting);
    const parts = [];
    for await (const chunk of await client.chat.completions.create({ model: 'chat', messages, stream: true })) {
      for (const c of chunk.choices) if (c.delta.content) parts.push(c.delta.content);
    }
    assert.equal(parts.join(''), greeting);
    assert.ok(parts.length > 3, `${parts.length} parts`);
  },
  async calls() { // parsed by the client: strict functions
    const whole = (await client.chat.completions.parse({ model: 'tools', messages, tools })).choices[0].message;
    assert.deepEqual(called(whole), calls);
    const streamed = (await client.chat.completions.stream({ model: 'tools', messages, tools }).finalChatCompletion()).choices[0].message;
    assert.deepEqual(called(streamed), calls);
    assert.equal(new Set(streamed.tool_calls.map((c) => c.id)).size, 3);
  },
  async agent() { // the client runs the functions and asks again
    const runner = client.chat.completions.runTools({
      model: 'agent', stream: true, messages: [{ role: 'system', content: 'Be kind.' }, ...messages],
      tools: tools.map((t) => ({ ...t, function: { ...t.function, function: () => 'sun', parse: JSON.parse } })),
    });
    assert.equal(await runner.finalContent(), greeting);
    assert.equal(runner.messages.filter((m) => m.role === 'tool').length, 3);
  },
  async structured() {
    const answer = await client.chat.completions.parse({ model: 'json', messages, response_format: person });
    assert.deepEqual(answer.choices[0].message.parsed, ada);
    const mode = await client.chat.completions.create({ model: 'json', messages, response_format: { type: 'json_object' } });
    assert.deepEqual(JSON.parse(mode.choices[0].message.content), ada);
  },
  async structured_stream() {
    const final = await client.chat.completions.stream({ model: 'json', messages, response_format: person }).finalChatCompletion();
    assert.deepEqual(final.choices[0].message.parsed, ada);
  },
  async errors() {
    for (const more of [{}, { stream: true }]) {
      for (const [kind, ask] of [['NotFoundError', { model: 'none' }], ['BadRequestError', { temperature: 17 }], ['InternalServerError', { model: 'broken' }]]) {
        await assert.rejects(client.chat.completions.create({ model: 'chat', messages, ...ask, ...more }), (e) => {
          assert.equal(e.constructor.name, kind);
          assert.ok(!e.message.includes('secret'), e.message);
          return true;
        });
      }
    }
  },
  async error_in_stream() {
    let seen = '';
    const read = async () => {
      for await (const chunk of await client.chat.completions.create({ model: 'breaks', messages, stream: true })) {
        for (const c of chunk.choices) {
          seen += c.delta.content ?? '';
          assert.equal(c.finish_reason, null);
        }
      }
    };
    await assert.rejects(read(), (e) => e instanceof OpenAI.APIError && !e.message.includes('secret'));
    assert.equal(seen, 'Hel');
  },
  async cancel() {
    const stream = await client.chat.completions.create({ model: 'slow', messages, stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content) stream.controller.abort();
  },
};

for (const [check, run] of Object.entries(checks)) {
  const line = { check, ok: true, detail: '' };
  try {
    await run();
  } catch (e) { // every check reports, whatever the others do
    Object.assign(line, { ok: false, detail: `${e.constructor.name}: ${e.message}`.slice(0, 800) });
  }
  console.log(JSON.stringify(line));
}
