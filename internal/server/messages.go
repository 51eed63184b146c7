package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/api/anthropic"
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/messages"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/server/validate"
)

// askedMessage is a request of Anthropic's form, read and checked.
type askedMessage struct {
	req  *anthropic.Request
	set  *catalog.Set
	own  *messages.Chat      // how its fields are called
	chat *openai.ChatRequest // what it means
}

// readMessage reads a request with the decoder of its endpoint, and makes a chat of it. The order of failures is that
// of chats.
func (x *exchange) readMessage(
	decode func([]byte, anthropic.Options) (*anthropic.Request, error),
) (*askedMessage, error) {
	// Anthropic's name of the id.
	x.w.Header()["Request-Id"] = x.w.Header()["X-Request-Id"]
	body, err := x.s.readBody(x.w, x.r)
	if err != nil {
		return nil, err
	}
	req, err := decode(body, anthropic.Options{MaxDepth: x.s.opts.Decode.MaxDepth})
	if err != nil {
		return nil, err
	}
	set, unknown := x.lookup(&openai.Common{Model: req.Model, Stream: &req.Stream})
	if fault.KindOf(unknown) == fault.Unavailable {
		return nil, unknown
	}
	own, err := messages.NewChat(req, messages.ChatOptions{KeepPreamble: x.s.opts.KeepPreamble})
	if err != nil {
		return nil, err
	}
	chat, err := openai.DecodeChat(own.Body, x.s.opts.Decode)
	if err == nil {
		err = validate.Chat(chat, x.s.opts.Validate)
	}
	if err != nil {
		return nil, own.Own(err)
	}
	if unknown != nil {
		return nil, unknown
	}
	return &askedMessage{req, set, own, chat}, nil
}

// messages answers POST /v1/messages.
func (x *exchange) messages() error {
	a, err := x.readMessage(anthropic.Decode)
	if err != nil {
		return err
	}
	x.describe(&a.chat.Common, "chat", a.chat.TokenLimit())
	tellStops(a.chat)
	prepared, err := x.s.opts.Pipeline.PrepareChat(x.r.Context(), a.set, x.meta, a.chat)
	if err != nil {
		return a.own.Own(err)
	}
	x.answerID = "msg_" + strings.ReplaceAll(x.meta.RequestID, "-", "")
	x.beat = messages.Ping
	o := messages.Options{ID: x.answerID, Model: a.req.Model, Stops: a.req.StopSequences}
	return x.answer(prepared, form{
		fold: func() folder { return messages.NewFold(o) },
		stream: func(out *sse.Writer) streamer {
			return message{messages.NewStream(out, o), x.errors}
		},
	})
}

// tellStops asks the worker which stop sequence ended the answer: clients of this API are told.
func tellStops(req *openai.ChatRequest) {
	var x openai.NvExt
	if req.NvExt != nil {
		x = *req.NvExt
	}
	if !x.HasExtra("stop_reason") {
		x.ExtraFields = append(slices.Clip(x.ExtraFields), "stop_reason")
	}
	req.NvExt = &x
}

// message is a stream of Anthropic's events, whose failure is one of them.
type message struct {
	*messages.Stream
	errors *errorTable
}

// Fail ends the stream with f.
func (m message) Fail(f *fault.Error) error { return m.Stream.Fail(m.errors.appendEvent(nil, f)) }

// countTokens answers POST /v1/messages/count_tokens: how long the prompt is, to the token.
func (x *exchange) countTokens() error {
	a, err := x.readMessage(anthropic.DecodeCount)
	if err != nil {
		return err
	}
	n, err := x.s.opts.Pipeline.CountChat(x.r.Context(), a.set, a.chat)
	if err != nil {
		return a.own.Own(err)
	}
	return x.write(append(strconv.AppendInt([]byte(`{"input_tokens":`), int64(n), 10), '}'))
}

// anthropicVersion is the header by which clients of Anthropic's API are known: all of them send it.
const anthropicVersion = "Anthropic-Version"

// asksAnthropic reports whether a request for what both APIs have in one place wants Anthropic's form.
func (s *Server) asksAnthropic(r *http.Request) bool {
	return !s.opts.NoAnthropic && r.Header.Get(anthropicVersion) != ""
}
