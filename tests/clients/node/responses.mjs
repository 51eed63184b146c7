// The same as python/responses.py with the official client for Node.
//
// usage: node responses.mjs BASE_URL
import OpenAI from 'openai';

const [baseURL] = process.argv.slice(2);
const client = new OpenAI({ baseURL: baseURL + '/v1', apiKey: 'unused', maxRetries: 0, timeout: 30_000 });
const tools = ['get_weather', 'get_time'].map((name) => ({
  type: 'function', name, strict: false, parameters: { type: 'object', properties: {} },
}));
const ask = { model: 'm', input: 'Weather in three cities?', tools };

const textOf = (item) => item.content.map((part) => part.text).join('');
const seen = (response) => ({
  status: response.status,
  items: response.output.map((item) =>
    item.type === 'function_call' ? [item.type, item.status, item.name, item.arguments] : [item.type, item.status, textOf(item)]),
  text: response.output_text,
  total: response.usage.total_tokens,
});
const raised = async (call) => {
  try {
    await call();
  } catch (e) {
    return [e.constructor.name, e.code ?? null, e.param ?? null];
  }
  return null;
};

const events = [];
const stream = client.responses.stream(ask);
for await (const e of stream) events.push(e);
const final = await stream.finalResponse();
const numbers = events.map((e) => e.sequence_number);
const whole = await client.responses.create(ask);

const format = {
  format: {
    type: 'json_schema', name: 'place', strict: true,
    schema: {
      type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city', 'days'],
      additionalProperties: false,
    },
  },
};
const structured = { model: 'json', input: 'Where?', text: format };
const parsed = JSON.parse((await client.responses.parse(structured)).output_text);
const streamed = JSON.parse((await client.responses.stream(structured).finalResponse()).output_text);

const second = await client.responses.create({ model: 'm', input: 'And now?', previous_response_id: whole.id });
const kept = await client.responses.retrieve(second.id);
const page = await client.responses.inputItems.list(second.id, { order: 'asc', limit: 2 });
const items = [];
for await (const item of page) items.push(item.type);
const all = async (events) => {
  const list = [];
  for await (const e of events) list.push(JSON.stringify(e));
  return list;
};
const raw = await all(await client.responses.create({ ...ask, stream: true }));
const stored = JSON.parse(raw[0]).response.id;
const again = await all(await client.responses.retrieve(stored, { stream: true }));
const rest = await all(await client.responses.retrieve(stored, { stream: true, starting_after: 9 }));
const counted = (await client.responses.inputTokens.count({ model: 'm', input: 'Hello' })).input_tokens;
await client.responses.delete(whole.id);

const left = await client.responses.create({ model: 'slow', input: 'a', stream: true });
const first = [];
for await (const e of left) {
  first.push(e.type);
  break; // which aborts the request
}

console.log(JSON.stringify({
  stream: seen(final),
  whole: seen(whole),
  dense: numbers.every((n, i) => n === i),
  done: events.filter((e) => e.type === 'response.function_call_arguments.done').map((e) => [e.output_index, e.name, e.arguments]),
  deltas: events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join(''),
  parsed: [parsed, streamed],
  kept: [kept.id === second.id, JSON.stringify(seen(kept)) === JSON.stringify(seen(second)), kept.previous_response_id === whole.id],
  replayed: [again.join() === raw.join(), rest.join() === raw.slice(10).join(), raw.length > 20],
  items,
  counted,
  left: first,
  errors: {
    deleted: await raised(() => client.responses.retrieve(whole.id)),
    'unknown model': await raised(() => client.responses.create({ model: 'none', input: 'a' })),
    'bad field': await raised(() => client.responses.create({ model: 'm', input: 'a', temperature: 3 })),
    lost: await raised(() => client.responses.create({ model: 'lost', input: 'a' })),
    'lost in a stream': await raised(async () => {
      for await (const _ of await client.responses.create({ model: 'lost', input: 'a', stream: true }));
    }),
  },
}));
