// Puts a streamed answer together with the official client's own accumulator, and asks for the same in one body. Prints
// both messages as one JSON object.
//
// usage: node tools.mjs BASE_URL MODEL
import OpenAI from 'openai';

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: baseURL + '/v1', apiKey: 'unused', maxRetries: 0, timeout: 30_000 });
const tools = ['get_weather', 'get_time'].map((name) => ({
  type: 'function', function: { name, parameters: { type: 'object', properties: {} } },
}));
const ask = { model, messages: [{ role: 'user', content: 'Weather in three cities?' }], tools };

const seen = ({ message, finish_reason: finish }) => ({
  content: message.content,
  reasoning: message.reasoning_content ?? null,
  calls: (message.tool_calls ?? []).map((c) => [c.function.name, c.function.arguments]),
  ids: new Set((message.tool_calls ?? []).map((c) => c.id)).size,
  finish,
});

const done = [];
const stream = client.chat.completions.stream(ask)
  .on('tool_calls.function.arguments.done', (e) => done.push([e.name, e.index, e.arguments]));
const final = (await stream.finalChatCompletion()).choices[0];
const whole = (await client.chat.completions.create(ask)).choices[0];
console.log(JSON.stringify({ stream: seen(final), whole: seen(whole), done }));
