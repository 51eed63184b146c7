package loadgen

import (
	"bytes"
	"errors"
	"strconv"
	"time"
)

// Kind names why a request counts as failed.
type Kind string

// The kinds of failure.
const (
	Dial       Kind = "dial"        // no connection
	Broken     Kind = "broken"      // the connection failed while a request was under way
	TimedOut   Kind = "timeout"     // no complete answer in time
	BadHTTP    Kind = "bad_http"    // not HTTP/1.1 as this client knows it
	Status     Kind = "status"      // a status other than 200; reports carry it, as in status_503
	Truncated  Kind = "truncated"   // the answer ended without [DONE]
	Malformed  Kind = "malformed"   // not an event stream as OpenAI's clients expect it
	ErrorEvent Kind = "error_event" // an error inside the stream
	WrongCount Kind = "wrong_count" // other than the number of tokens that was asked for
)

// failure is an error with its kind. The text may hold what the server sent, shortened by clip.
type failure struct {
	kind Kind
	text string
}

func (f *failure) Error() string { return string(f.kind) + ": " + f.text }

// stream checks the events of one answer and takes their times. The zero value is ready; reset makes it so again.
type stream struct {
	line []byte // an unfinished line

	start time.Time       // sent, or in the open loop when it should have been
	first time.Time       // first text
	last  time.Time       // latest text
	gaps  []time.Duration // between texts

	done        bool   // [DONE] has been seen
	finish      string // finish_reason of the choice
	prompt      int    // usage.prompt_tokens; 0: not said
	completion  int    // usage.completion_tokens
	contents    int    // events with text
	hasUsage    bool
	openedEvent bool // a data line has been seen since the last empty line
}

// reset makes s ready for another answer and keeps its memory.
func (s *stream) reset(start time.Time) {
	*s = stream{line: s.line[:0], gaps: s.gaps[:0], start: start}
}

// feed takes a piece of the event stream that arrived at now. Where pieces begin and end makes no difference: a line
// that isn't whole is kept for the next. Errors are failures, after which the answer is not worth reading on.
func (s *stream) feed(b []byte, now time.Time) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			s.line = append(s.line, b...)
			return nil
		}
		line := b[:i]
		b = b[i+1:]
		if len(s.line) > 0 {
			s.line = append(s.line, line...)
			line = s.line
		}
		err := s.take(line, now)
		s.line = s.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	// What is looked for, as servers write it: JSON without spaces, as serde_json and encoding/json make it.
	dataField   = []byte("data:")
	doneMark    = []byte("[DONE]")
	contentKey  = []byte(`"content":"`)
	finishKey   = []byte(`"finish_reason":"`)
	usageKey    = []byte(`"usage":{`)
	promptKey   = []byte(`"prompt_tokens":`)
	completeKey = []byte(`"completion_tokens":`)
	errorKey    = []byte(`"error"`)
	choicesKey  = []byte(`"choices"`)
)

// take handles one line without its line feed. It is stricter than browsers are: a field that no server of this API
// sends is an error, since a broken frame would look like one.
func (s *stream) take(line []byte, now time.Time) error {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	switch {
	case len(line) == 0:
		s.openedEvent = false
		return nil
	case line[0] == ':':
		if s.openedEvent {
			return &failure{Malformed, "a comment inside an event"}
		}
		return nil
	case s.done:
		return &failure{Malformed, "data after [DONE]"}
	case bytes.HasPrefix(line, []byte("event:")):
		return nil // an error's text is in its data line
	case !bytes.HasPrefix(line, dataField):
		return &failure{Malformed, "unexpected line " + clip(line)}
	}
	s.openedEvent = true
	// A space after the colon is not part of the value.
	return s.data(bytes.TrimPrefix(line[len(dataField):], []byte{' '}), now)
}

// data handles the value of one data line. It looks for keys as bytes: inside a JSON string their quotes would be
// escaped, so text can't be taken for a key.
func (s *stream) data(d []byte, now time.Time) error {
	if bytes.Equal(d, doneMark) {
		s.done = true
		return nil
	}
	if len(d) < 2 || d[0] != '{' || d[len(d)-1] != '}' {
		return &failure{Malformed, "data is no object: " + clip(d)}
	}
	// The empty content of the role's event is no text.
	if i := bytes.Index(d, contentKey); i >= 0 && d[i+len(contentKey)] != '"' {
		s.token(now)
	}
	if v, ok := stringAfter(d, finishKey); ok {
		if s.finish != "" {
			return &failure{Malformed, "a second finish_reason"}
		}
		s.finish = v
	}
	if i := bytes.Index(d, usageKey); i >= 0 {
		s.hasUsage = true
		s.prompt, s.completion = numberAfter(d[i:], promptKey), numberAfter(d[i:], completeKey)
	} else if !bytes.Contains(d, choicesKey) {
		// OpenAI wraps an error in "error"; Dynamo's flat form has a message at the top.
		if bytes.Contains(d, errorKey) || bytes.Contains(d, []byte(`"message"`)) {
			return &failure{ErrorEvent, clip(d)}
		}
		return &failure{Malformed, "event without choices: " + clip(d)}
	}
	return nil
}

// token notes the time of a piece of text. Pieces that came in one read have the same time, and a gap of zero.
func (s *stream) token(now time.Time) {
	s.contents++
	if s.first.IsZero() {
		s.first = now
	} else {
		s.gaps = append(s.gaps, now.Sub(s.last))
	}
	s.last = now
}

// end checks the whole answer against the tokens that were asked for. An answer may stop early, at the model's end
// token; one that ends by its length has exactly as many as asked for.
func (s *stream) end(maxTokens int, wantUsage bool) error {
	switch {
	case !s.done:
		return &failure{Truncated, "no [DONE]"}
	case s.finish == "":
		return &failure{Malformed, "no finish_reason"}
	case s.finish != "length" && s.finish != "stop":
		return &failure{Malformed, "finish_reason " + s.finish}
	case wantUsage && !s.hasUsage:
		return &failure{Malformed, "no usage"}
	case wantUsage && s.finish == "length" && s.completion != maxTokens:
		return &failure{WrongCount, strconv.Itoa(s.completion) + " tokens of " + strconv.Itoa(maxTokens)}
	case s.contents == 0:
		return &failure{WrongCount, "no text at all"}
	}
	return nil
}

// stringAfter returns the text from key, which ends with an opening quote, to the next quote.
func stringAfter(b, key []byte) (string, bool) {
	i := bytes.Index(b, key)
	if i < 0 {
		return "", false
	}
	v, _, ok := bytes.Cut(b[i+len(key):], []byte{'"'})
	return string(v), ok
}

// numberAfter returns the number behind the first key; 0 when there is none.
func numberAfter(b, key []byte) int {
	i := bytes.Index(b, key)
	if i < 0 {
		return 0
	}
	n := 0
	for _, c := range b[i+len(key):] {
		if c == ' ' && n == 0 {
			continue
		}
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// clip shortens what goes into an error message.
func clip(b []byte) string {
	const most = 200
	if len(b) > most {
		b = b[:most]
	}
	return string(b)
}

// kindOf returns the kind of err as reports count it.
func kindOf(err error) Kind {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.kind
	}
	return Broken
}
