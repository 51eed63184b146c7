// A conversation of several turns at temperature 0 through one of the SDKs for Node. Prints the answers as a JSON array.
//
// usage: node turns.mjs SDK BASE_URL MODEL QUESTION...
import OpenAI from 'openai';
import { streamText } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';

const [sdk, baseURL, model, ...questions] = process.argv.slice(2);
const system = { role: 'system', content: 'Answer in one sentence.' };
const url = { baseURL: baseURL + '/v1', apiKey: 'unused' };
const asks = {
  openai: async (messages) => {
    const stream = new OpenAI({ ...url, maxRetries: 0 }).chat.completions.stream({ model, messages, temperature: 0, max_tokens: 24 });
    return (await stream.finalChatCompletion()).choices[0].message.content;
  },
  ai: (messages) => streamText({
    model: createOpenAI(url).chat(model), messages, temperature: 0, maxOutputTokens: 24, maxRetries: 0, allowSystemInMessages: true,
  }).text,
};

const messages = [system], answers = [];
for (const content of questions) {
  messages.push({ role: 'user', content });
  const answer = await asks[sdk](messages);
  messages.push({ role: 'assistant', content: answer });
  answers.push(answer);
}
console.log(JSON.stringify(answers));
