package pipeline_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/testkit"
)

// porter is a courier that brings images anywhere at once, and memory that counts what is said of it.
type porter struct {
	err     error
	none    bool // the images are to go by URL
	request *multimodal.Request

	told, untold, closed int
}

func (p *porter) Load(_ context.Context, r *multimodal.Request) (*multimodal.Load, error) {
	p.request = r
	if p.err != nil || p.none {
		return nil, p.err
	}
	return &multimodal.Load{
		Held: p, RoutingTokens: []uint32{1, 1_000_001, 1_000_001},
		Args: []multimodal.Arg{{Name: "mm_placeholders", Value: json.RawMessage("[[1,2]]")}, {Name: "mm_kwargs_x", Value: json.RawMessage(`{"a":1}`)}},
	}, nil
}

func (p *porter) Told()   { p.told++ }
func (p *porter) Untold() { p.untold++; p.told = 0 }
func (p *porter) Close()  { p.closed++ }

// known is a processor that nobody asks anything of.
type known struct{ multimodal.Processor }

// knownDecoder is the same of a decoder.
type knownDecoder struct{ multimodal.Decoder }

// nobody is a dispatcher that finds no worker to send anything to.
type nobody struct{}

func (nobody) Dispatch(context.Context, *router.Call) (router.Stream, error) {
	return nil, fault.New(fault.Unavailable, "No workers available")
}

const imageArgs = `"mm_placeholders":[[1,2]],"mm_kwargs_x":{"a":1}`

// picture is a prepared request with one image, and the pipeline to run it.
func picture(t *testing.T, p *porter, d router.Dispatcher, body string) (*pipeline.Pipeline, *pipeline.Prepared) {
	t.Helper()
	set := testkit.ByteModel("m")
	set.Renderer, set.Images = &echoModel{}, known{}
	pipe := pipeline.New(pipeline.Options{
		Dispatcher: d, Courier: p, Routing: true, Log: slog.New(slog.DiscardHandler), Migration: pipeline.Migration{Limit: 3},
	})
	return pipe, pictureFor(t, pipe, set, body)
}

func pictureFor(t *testing.T, pipe *pipeline.Pipeline, set *catalog.Set, body string) *pipeline.Prepared {
	t.Helper()
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := pipe.PrepareChat(t.Context(), set, pipeline.Meta{RequestID: "id"}, req)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

const pictureBody = `{"model":"m","cache_salt":"s","messages":[{"role":"system","content":"x"},{"role":"user","content":[
	{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"http://a/b.png"}}]}]}`

// TestRunMedia: the worker is told where the images are and gets their URLs as well; the memory is released once.
func TestRunMedia(t *testing.T) {
	p := &porter{}
	d := testkit.Play(testkit.Items(`[{"token_ids":[65],"finish_reason":"stop"}]`))
	pipe, req := picture(t, p, d, pictureBody)
	want := []multimodal.Source{{Kind: multimodal.ImageURL, URL: "http://a/b.png", Path: "messages[1].content[1].image_url"}}
	if diff := cmp.Diff(want, req.Images); diff != "" {
		t.Fatal(diff)
	}
	if p.request != nil {
		t.Fatal("images are brought before the request runs")
	}
	var sink record
	if err := pipe.Run(t.Context(), req, &sink); err != nil {
		t.Fatal(err)
	}
	call := d.Calls()[0]
	q := sent(t, call)
	if got := string(q.ExtraArgs); got != `{"nvext":{"cache_salt":"s"},`+imageArgs+`}` {
		t.Errorf("extra_args %s", got)
	}
	if got := string(q.MultiModalData); got != `{"image_url":[{"Url":"http://a/b.png"}]}` {
		t.Errorf("multi_modal_data %s", got)
	}
	if got := string(q.MMRoutingInfo); got != `{"routing_token_ids":[1,1000001,1000001],"block_mm_infos":[],"expanded_prompt_len":3}` {
		t.Errorf("mm_routing_info %s", got)
	}
	if diff := cmp.Diff([]uint32{1, 1_000_001, 1_000_001}, call.Call.TokenIDs); diff != "" {
		t.Errorf("routers see %s", diff)
	}
	if cmp.Equal(q.TokenIDs, call.Call.TokenIDs) || !cmp.Equal(p.request.Tokens, q.TokenIDs) || !p.request.Routing {
		t.Errorf("got tokens %v and request %+v", q.TokenIDs, p.request)
	}
	if p.told != 1 || p.closed != 1 || p.untold != 0 {
		t.Errorf("told %d, closed %d, untold %d", p.told, p.closed, p.untold)
	}
}

// TestRunMediaByURL: when the courier brings nothing, the request goes as it would without one.
func TestRunMediaByURL(t *testing.T) {
	p := &porter{none: true}
	d := testkit.Play(testkit.Items(`[{"token_ids":[65],"finish_reason":"stop"}]`))
	pipe, req := picture(t, p, d, pictureBody)
	if err := pipe.Run(t.Context(), req, &record{}); err != nil {
		t.Fatal(err)
	}
	if q := sent(t, d.Calls()[0]); string(q.ExtraArgs) != `{"nvext":{"cache_salt":"s"}}` || q.MMRoutingInfo != nil {
		t.Errorf("got %s, %s", q.ExtraArgs, q.MMRoutingInfo)
	}
}

// TestRunMediaEnds: whichever way a request ends, its memory is released once.
func TestRunMediaEnds(t *testing.T) {
	bad := fault.Bad("messages[1].content[1].image_url", "broken")
	for name, tc := range map[string]struct {
		p      porter
		script string
		cancel bool
		left   bool // before anything
		want   fault.Kind
		untold int
		closed int
	}{
		"a bad image":         {p: porter{err: bad}, script: `[]`, want: fault.BadRequest},
		"left while fetching": {p: porter{err: context.Canceled}, script: `[]`, left: true, want: fault.Cancelled},
		"no worker":           {want: fault.Unavailable, untold: 1, closed: 1},
		"none takes it":       {script: "!", want: fault.Unavailable, closed: 1},
		"the worker dies":     {script: `[{"_lost":true}]`, want: fault.Unavailable, closed: 1},
		"the worker fails":    {script: `[{"_dynamo_annotated":true,"event":"error","comment":["\"boom\""]}]`, want: fault.Internal, closed: 1},
		"the client leaves":   {script: `[{"token_ids":[65]},{"_wait":true}]`, cancel: true, want: fault.Cancelled, closed: 1},
		"all is well, though": {script: `[{"token_ids":[65],"finish_reason":"stop"}]`, closed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			p := &tc.p
			var d router.Dispatcher = relay(tc.script)
			if tc.script == "" {
				d = nobody{}
			}
			pipe, req := picture(t, p, d, pictureBody)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.left {
				cancel()
			}
			sink := record{delta: func(*pipeline.Delta) error {
				if tc.cancel {
					cancel()
				}
				return nil
			}}
			err := pipe.Run(ctx, req, &sink)
			if (err == nil) != strings.Contains(tc.script, `"stop"`) || err != nil && fault.KindOf(err) != tc.want {
				t.Errorf("got %v", err)
			}
			if p.closed != tc.closed || p.untold != tc.untold {
				t.Errorf("closed %d times, untold %d", p.closed, p.untold)
			}
			if f, ok := errors.AsType[*fault.Error](err); err != nil && (!ok || f.Kind != tc.want) {
				t.Errorf("got %v", err)
			}
			if tc.p.err == bad && (!errors.Is(err, bad) || sink.started != 0) {
				t.Errorf("got %v after %d starts", err, sink.started)
			}
		})
	}
}

// TestMigrateMedia: a request that begins anew elsewhere takes its images along, and one more reader is counted; one
// that goes on has them by URL, since its prompt is no longer the one that the items belong to.
func TestMigrateMedia(t *testing.T) {
	p := &porter{}
	d := relay(`[{"_lost":true}]`, `[{"token_ids":[65]},{"_lost":true}]`, `[{"token_ids":[66],"finish_reason":"stop"}]`)
	pipe, req := picture(t, p, d, pictureBody)
	if err := pipe.Run(t.Context(), req, &record{}); err != nil {
		t.Fatal(err)
	}
	calls := d.Calls()
	if len(calls) != 3 {
		t.Fatalf("%d calls", len(calls))
	}
	for i, want := range []string{`{"nvext":{"cache_salt":"s"},` + imageArgs + `}`, `{"nvext":{"cache_salt":"s"},` + imageArgs + `}`, `{"nvext":{"cache_salt":"s"}}`} {
		q := sent(t, calls[i])
		if string(q.ExtraArgs) != want || len(q.MultiModalData) == 0 || (len(q.MMRoutingInfo) > 0) != (i < 2) {
			t.Errorf("call %d: %s %s %s", i, q.ExtraArgs, q.MultiModalData, q.MMRoutingInfo)
		}
		if len(calls[i].Call.TokenIDs) == 3 != (i < 2) {
			t.Errorf("call %d: routers see %v", i, calls[i].Call.TokenIDs)
		}
	}
	if p.told != 2 || p.closed != 1 {
		t.Errorf("told %d, closed %d", p.told, p.closed)
	}
}

// TestImages: what isn't images alone, in the model's own way, is the workers' part.
func TestImages(t *testing.T) {
	image := `{"type":"image_url","image_url":{"url":"u"}}`
	for name, tc := range map[string]struct {
		parts, members string
		plain          bool // no processor is known
		pixels, shares bool
		want           int
	}{
		"images":             {parts: image + "," + image, want: 2},
		"text":               {parts: `{"type":"text","text":"x"}`},
		"mixed":              {parts: image + `,{"type":"video_url","video_url":{"url":"v"}}`},
		"no processor":       {parts: image, plain: true},
		"processor settings": {parts: image, members: `"mm_processor_kwargs":{"max_pixels":1},`},
		"pixels":             {parts: image, plain: true, pixels: true, want: 1},
		"workers that share": {parts: image, shares: true},
		"the client's ids":   {parts: image, members: `"nvext":{"token_data":[1,2]},`},
	} {
		t.Run(name, func(t *testing.T) {
			set := testkit.ByteModel("m")
			if set.Renderer = (&echoModel{}); !tc.plain {
				set.Images = known{}
			}
			if tc.pixels {
				set.Pixels = knownDecoder{}
			}
			if tc.shares {
				set.Card.Needs = [][]string{{"prefill"}}
			}
			body := `{"model":"m",` + tc.members + `"messages":[{"role":"user","content":[` + tc.parts + `]}]}`
			if got := pictureFor(t, pipeline.New(pipeline.Options{Courier: &porter{}}), set, body).Images; len(got) != tc.want {
				t.Errorf("got %v", got)
			}
			if got := pictureFor(t, pipeline.New(pipeline.Options{}), set, body).Images; len(got) != 0 {
				t.Errorf("without a courier: got %v", got)
			}
		})
	}
}

// TestTooLargeWithoutMedia: where there is no data URL that takes room, nothing is said of any; a worker's own refusal
// stays as it is.
func TestTooLargeWithoutMedia(t *testing.T) {
	image := func(url string) string { return `{"type":"image_url","image_url":{"url":"` + url + `"}}` }
	for name, c := range map[string]struct {
		url    string
		origin fault.Origin
	}{
		"address":    {url: "http://a/" + strings.Repeat("b", 5000) + ".png"},
		"small":      {url: "data:image/png;base64,AAAA"},
		"the worker": {url: "data:image/png;base64," + strings.Repeat("A", 5000), origin: fault.FromWorker},
	} {
		t.Run(name, func(t *testing.T) {
			d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) {
				return nil, &fault.Error{Kind: fault.TooLarge, Origin: c.origin, Message: "Too large"}
			}}
			pipe, req := picture(t, &porter{none: true}, d,
				`{"model":"m","messages":[{"role":"user","content":[`+image(c.url)+`]}]}`)
			var sink record
			if f := fault.From(pipe.Run(t.Context(), req, &sink)); f.Kind != fault.TooLarge || f.Param != "" || f.Message != "Too large" {
				t.Errorf("got %v of %q", f, f.Param)
			}
		})
	}
}

// TestShrinkMedia: a message that is too large with its images' data URLs goes without them, where the images are within
// the worker's reach. What it says in their place is no image, so that a worker that can't read them doesn't answer as if
// there were none.
func TestShrinkMedia(t *testing.T) {
	long, short := "data:image/png;base64,"+strings.Repeat("A", 20_000), "data:image/png;base64,AAAA"
	image := func(url string) string { return `{"type":"image_url","image_url":{"url":"` + url + `"}}` }
	body := `{"model":"m","messages":[{"role":"user","content":[` + image(long) + `,` + image("http://a/b.png") + `,` + image(short) +
		`,` + image("DATA"+long[4:]) + `]}]}`
	for name, c := range map[string]struct {
		limit int
		none  bool
		sends int
		err   fault.Kind
		want  string
	}{
		"fits":    {limit: 1_000_000, sends: 1, want: long},
		"shrunk":  {limit: 140_000, sends: 2, want: "too large to be sent along"},
		"no room": {limit: 100, sends: 2, err: fault.TooLarge},
		"by URL":  {limit: 140_000, none: true, sends: 1, err: fault.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			p := &porter{none: c.none}
			sends := 0
			d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
				if sends++; len(body) > c.limit {
					return nil, fault.New(fault.TooLarge, "The request is %d bytes once encoded", len(body))
				}
				return testkit.Items(`[{"token_ids":[65],"finish_reason":"stop"}]`), nil
			}}
			pipe, req := picture(t, p, d, body)
			var sink record
			err := pipe.Run(t.Context(), req, &sink)
			if sends != c.sends {
				t.Errorf("sent %d times", sends)
			}
			if c.err != 0 {
				// The client is told which part takes the room.
				path := "messages[0].content[0].image_url"
				if f := fault.From(err); f.Kind != c.err || f.Param != path || !strings.Contains(f.Message, "`"+path+"`") {
					t.Errorf("got %v of %q", err, f.Param)
				}
				if !c.none && p.closed != 1 {
					t.Errorf("closed %d times", p.closed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			q := sent(t, d.Calls()[0])
			var media struct {
				Images []struct {
					URL string `json:"Url"`
				} `json:"image_url"`
			}
			if err := json.Unmarshal(q.MultiModalData, &media); err != nil {
				t.Fatal(err)
			}
			got := media.Images
			if len(got) != 4 || !strings.Contains(got[0].URL, c.want) || got[1].URL != "http://a/b.png" || got[2].URL != short {
				t.Errorf("got %.300s", q.MultiModalData)
			}
			if c.sends > 1 {
				want := "data:text/plain,messages[0].content[3].image_url is too large to be sent along"
				if got[3].URL != want || !strings.Contains(string(q.ExtraArgs), imageArgs) {
					t.Errorf("got %.300s and %s", q.MultiModalData, q.ExtraArgs)
				}
			}
			// One worker was told, however often the message was encoded.
			if p.told != 1 || p.untold != 0 || p.closed != 1 {
				t.Errorf("told %d, untold %d, closed %d times", p.told, p.untold, p.closed)
			}
		})
	}
}
