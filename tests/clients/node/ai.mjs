// Runs the Vercel AI SDK against a server whose worker plays the scripts of sdks_test.go, once with its OpenAI provider
// and once with the one for compatible servers. Prints one JSON line per check.
//
// usage: node ai.mjs BASE_URL
import assert from 'node:assert/strict';
import { embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { z } from 'zod';

const baseURL = process.argv[2] + '/v1';
const openai = createOpenAI({ baseURL, apiKey: 'unused' });
const compatible = createOpenAICompatible({ name: 'portico', baseURL, includeUsage: true, supportsStructuredOutputs: true });
const providers = {
  openai: (model) => openai.chat(model),
  compatible: (model) => compatible.chatModel(model),
};
const plain = { maxRetries: 0, prompt: 'Say hello.' };
const person = z.object({ name: z.string(), age: z.number() });
const cities = {
  get_weather: tool({ description: 'Weather', inputSchema: z.object({ city: z.string() }), execute: ({ city }) => `sun in ${city}` }),
  get_time: tool({ description: 'Time', inputSchema: z.object({}), execute: () => 'noon' }),
};
const calls = [['get_weather', { city: 'Oslo' }], ['get_weather', { city: 'Zürich "HB"' }], ['get_time', {}]];

async function text(model) {
  const answer = await generateText({ model: model('chat'), ...plain });
  assert.equal(answer.text, 'Hello there, friend.');
  assert.equal(answer.finishReason, 'stop');
  assert.equal(answer.usage.outputTokens, 'Hello there, friend.'.length + 1);
}

async function stream(model) {
  const answer = streamText({ model: model('chat'), ...plain, system: 'Be kind.', temperature: 0.5, topP: 0.9, seed: 1, stopSequences: ['END'], maxOutputTokens: 64 });
  const parts = [];
  for await (const part of answer.textStream) parts.push(part);
  assert.equal(parts.join(''), 'Hello there, friend.');
  assert.ok(parts.length > 1, `${parts.length} parts`);
  assert.equal(await answer.finishReason, 'stop');
  assert.equal((await answer.usage).outputTokens, 'Hello there, friend.'.length + 1);
}

async function multiTurn(model) {
  const messages = [
    { role: 'system', content: 'Be kind.' },
    { role: 'user', content: [{ type: 'text', text: 'Hi.' }] },
    { role: 'assistant', content: 'Hello.' },
    { role: 'user', content: 'And now?' },
  ];
  const answer = await generateText({ model: model('chat'), maxRetries: 0, messages });
  assert.equal(answer.text, 'Hello there, friend.');
}

async function tools(model) {
  const answer = await generateText({ model: model('tools'), ...plain, tools: cities });
  assert.deepEqual(answer.toolCalls.map((c) => [c.toolName, c.input]), calls);
  assert.equal(new Set(answer.toolCalls.map((c) => c.toolCallId)).size, 3);
  assert.equal(answer.finishReason, 'tool-calls');
  assert.equal(answer.text, "I'll look. ");
}

async function toolsStream(model) {
  const answer = streamText({ model: model('tools'), ...plain, tools: cities });
  const seen = [], deltas = {};
  let reasoning = '';
  for await (const part of answer.fullStream) {
    if (part.type === 'error') throw part.error;
    if (part.type === 'tool-call') seen.push([part.toolName, part.input]);
    if (part.type === 'tool-input-delta') deltas[part.id] = (deltas[part.id] ?? '') + part.delta;
    if (part.type === 'reasoning-delta') reasoning += part.text;
  }
  assert.deepEqual(seen, calls);
  assert.deepEqual(Object.values(deltas).map((d) => JSON.parse(d)), calls.map((c) => c[1]));
  if (model === providers.compatible) assert.equal(reasoning, 'Three cities, three calls.');
  assert.equal(await answer.finishReason, 'tool-calls');
}

async function agent(model) { // the results go back, and the model answers with text
  const answer = await generateText({ model: model('agent'), ...plain, tools: cities, stopWhen: stepCountIs(4) });
  assert.equal(answer.steps.length, 2);
  assert.equal(answer.text, 'Hello there, friend.');
  assert.deepEqual(answer.steps[0].toolResults.map((r) => r.output), ['sun in Oslo', 'sun in Zürich "HB"', 'noon']);
}

async function toolChoice(model) {
  const answer = await generateText({ model: model('forced'), ...plain, tools: cities, toolChoice: { type: 'tool', toolName: 'get_weather' } });
  assert.deepEqual(answer.toolCalls.map((c) => [c.toolName, c.input]), [['get_weather', { city: 'Oslo' }]]);
}

async function object(model) {
  const answer = await generateObject({ model: model('json'), ...plain, schema: person });
  assert.deepEqual(answer.object, { name: 'Ada', age: 36 });
}

async function objectStream(model) {
  const answer = streamObject({ model: model('json'), ...plain, schema: person });
  let partial = 0;
  for await (const _ of answer.partialObjectStream) partial++;
  assert.ok(partial > 1, `${partial} partial objects`);
  assert.deepEqual(await answer.object, { name: 'Ada', age: 36 });
}

async function failed(call, status) {
  try {
    await call();
  } catch (e) {
    assert.equal(e.statusCode, status, `${e.name}: ${e.message}`);
    assert.ok(e.message.length > 5 && !e.message.includes('secret'), e.message);
    return;
  }
  assert.fail('no error');
}

async function errors(model) {
  await failed(() => generateText({ model: model('none'), ...plain }), 404);
  await failed(() => generateText({ model: model('chat'), ...plain, temperature: 17 }), 400);
  await failed(() => generateText({ model: model('broken'), ...plain }), 500);
}

async function errorInStream(model) {
  const answer = streamText({ model: model('breaks'), ...plain, onError() {} });
  let text = '', error;
  for await (const part of answer.fullStream) {
    if (part.type === 'text-delta') text += part.text;
    if (part.type === 'error') error = part.error;
  }
  assert.equal(text, 'Hel');
  assert.ok(error, 'the end looks like a good one');
}

async function cancel(model) {
  const abort = new AbortController();
  const answer = streamText({ model: model('slow'), ...plain, abortSignal: abort.signal, onError() {} });
  for await (const part of answer.fullStream) if (part.type === 'text-delta') abort.abort();
}

async function ownTools() { // lines for the client's shell and changes of its files, over /v1/responses
  for (const ask of [generateText, streamText]) {
    const ran = [];
    const tools = {
      shell: openai.tools.shell({
        execute: ({ action }) => {
          ran.push(action.commands);
          return { output: action.commands.map(() => ({ stdout: 'a\n', stderr: '', outcome: { type: 'exit', exitCode: 0 } })) };
        },
      }),
      apply_patch: openai.tools.applyPatch({
        execute: ({ operation }) => {
          ran.push(operation);
          return { status: 'completed', output: 'created' };
        },
      }),
    };
    const answer = await ask({ model: openai.responses('own'), ...plain, tools, stopWhen: stepCountIs(3) });
    assert.equal(await answer.text, 'Hello there, friend.');
    assert.deepEqual(ran, [['ls', 'wc a'], { type: 'create_file', path: 'x', diff: '+"a"' }]);
  }
}

async function embeddings(provider) {
  const model = provider === 'openai' ? openai.embedding('embed') : compatible.embeddingModel('embed');
  const { embeddings, usage } = await embedMany({ model, values: ['a', 'bc'], maxRetries: 0 });
  assert.deepEqual(embeddings, [[1, 0.5], [2, 0.5]]);
  assert.equal(usage.tokens, 3);
}

const checks = { text, stream, multiTurn, tools, toolsStream, agent, toolChoice, object, objectStream, errors, errorInStream, cancel };
const more = { openai: { ownTools } };
for (const [provider, model] of Object.entries(providers)) {
  for (const [name, check] of Object.entries({ ...checks, embeddings: () => embeddings(provider), ...more[provider] })) {
    const line = { check: `${provider}/${name}`, ok: true, detail: '' };
    try {
      await check(model);
    } catch (e) { // every check reports, whatever the others do
      Object.assign(line, { ok: false, detail: `${e.name}: ${e.message}`.slice(0, 800) });
    }
    console.log(JSON.stringify(line));
  }
}
