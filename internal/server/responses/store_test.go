package responses_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/responses"
)

// talk keeps one turn under id, as the answer to input behind the response of before.
func talk(t testing.TB, s *responses.Store, id, before, input string) error {
	t.Helper()
	req := &openai.ResponsesRequest{}
	if input != "" {
		var err error
		if req, err = openai.DecodeResponses([]byte(`{"model":"m","input":"`+input+`"}`), openai.DecodeOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if before != "" {
		req.PreviousID = &before
	}
	c, err := s.Join(req, "", openai.DecodeOptions{})
	if err != nil {
		return err
	}
	c.Keeper(id)(reply.Kept{Body: []byte(`{"id":"` + id + `"}`), Output: []byte(`[{"type":"message","role":"assistant","content":"` + strings.ToUpper(input) + `"}]`)})
	return nil
}

// told is all that was said up to a response.
func told(t testing.TB, s *responses.Store, id string) string {
	t.Helper()
	c, err := s.Join(&openai.ResponsesRequest{PreviousID: &id}, "", openai.DecodeOptions{})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, m := range c.Items {
		all = append(all, m.Parts[0].Text)
	}
	return strings.Join(all, " ")
}

func gauge(t testing.TB, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestStoreBounds keeps more than there is room for, in number, bytes and age.
func TestStoreBounds(t *testing.T) {
	now := time.Unix(1000, 0)
	reg := prometheus.NewRegistry()
	s := responses.NewStore(responses.StoreOptions{MaxCount: 3, TTL: time.Minute, Registerer: reg, Now: func() time.Time { return now }})
	for i := range 4 {
		if err := talk(t, s, fmt.Sprint("resp_", i), "", "x"); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			s.Get("resp_0", "") // used, and so not the next to go
		}
	}
	for i, want := range []bool{true, false, true, true} {
		if _, ok := s.Get(fmt.Sprint("resp_", i), ""); ok != want {
			t.Errorf("response %d is kept: %t", i, ok)
		}
	}
	now = now.Add(time.Minute - 1)
	if _, ok := s.Get("resp_3", ""); !ok {
		t.Error("gone before its time")
	}
	now = now.Add(1)
	if _, ok := s.Get("resp_2", ""); ok {
		t.Error("kept beyond its time")
	}
	if _, ok := s.Get("resp_3", ""); !ok {
		t.Error("use has not kept it")
	}
	now = now.Add(time.Minute)
	s.Get("", "")
	if n, b := gauge(t, reg, "dynamo_frontend_stored_responses"), gauge(t, reg, "dynamo_frontend_stored_responses_bytes"); n != 0 || b != 0 {
		t.Errorf("%g responses, %g bytes when all are gone", n, b)
	}
	small := responses.NewStore(responses.StoreOptions{MaxCount: 100, MaxBytes: 4000})
	for i := range 10 {
		if err := talk(t, small, fmt.Sprint("resp_", i), "", strings.Repeat("y", 100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := talk(t, small, "resp_large", "", strings.Repeat("z", 4000)); err != nil {
		t.Fatal(err)
	}
	if _, ok := small.Get("resp_large", ""); ok {
		t.Error("larger than all the room there is, and kept")
	}
}

// TestStoreChain: a conversation outlives the responses that it came by, for as long as one of them is there.
func TestStoreChain(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := responses.NewStore(responses.StoreOptions{MaxCount: 100, Registerer: reg})
	for _, turn := range [][3]string{{"resp_a", "", "a"}, {"resp_b", "resp_a", "b"}, {"resp_c", "resp_b", "c"}, {"resp_d", "resp_b", "d"}} {
		if err := talk(t, s, turn[0], turn[1], turn[2]); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"resp_a", "resp_b"} {
		if !s.Delete(id, "") || s.Delete(id, "") {
			t.Errorf("%s: not deleted just once", id)
		}
	}
	if got := told(t, s, "resp_c"); got != "a A b B c C" {
		t.Error(got)
	}
	if got := told(t, s, "resp_b"); !strings.Contains(got, "not found") {
		t.Error(got)
	}
	s.Delete("resp_c", "")
	if got := told(t, s, "resp_d"); got != "a A b B d D" {
		t.Error(got)
	}
	s.Delete("resp_d", "")
	if b := gauge(t, reg, "dynamo_frontend_stored_responses_bytes"); b != 0 {
		t.Errorf("%g bytes are left of nothing", b)
	}
}

// TestStoreBusy has many hands on one small store, under the race detector.
func TestStoreBusy(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := responses.NewStore(responses.StoreOptions{MaxCount: 20, MaxBytes: 20000, Registerer: reg})
	var wg sync.WaitGroup
	for hand := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(hand), 1))
			for range 300 {
				id, before := fmt.Sprint("resp_", hand, r.IntN(20)), fmt.Sprint("resp_", hand, r.IntN(20))
				switch r.IntN(4) {
				case 0:
					s.Delete(id, "")
				case 1:
					told(t, s, id)
				case 2:
					_ = talk(t, s, fmt.Sprint("resp_", hand, "n", r.Uint64()), before, "b")
				default:
					_ = talk(t, s, fmt.Sprint("resp_", hand, "n", r.Uint64()), "", "c")
				}
			}
		})
	}
	wg.Wait()
	if n, b := gauge(t, reg, "dynamo_frontend_stored_responses"), gauge(t, reg, "dynamo_frontend_stored_responses_bytes"); n > 20 || b > 20000 || b < 0 {
		t.Errorf("%g responses, %g bytes", n, b)
	}
}

// TestStoreReferences: what is said by reference is bounded, however often and by whatever way it is referred to, and
// each response is read once.
func TestStoreReferences(t *testing.T) {
	s := responses.NewStore(responses.StoreOptions{MaxCount: 100, MaxTalk: 10000})
	id := strings.Repeat("a", 32)
	text := strings.Repeat("y", 2000)
	req, err := openai.DecodeResponses([]byte(`{"model":"m","input":"hi"}`), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Join(req, "", openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Keeper("resp_" + id)(reply.Kept{Output: []byte(`[{"type":"message","id":"msg_` + id + `00","role":"assistant","content":"` + text + `"}]`)})
	join := func(n int, before string) error {
		item := `{"type":"item_reference","id":"msg_` + id + `00"}`
		req, err := openai.DecodeResponses([]byte(`{"model":"m","input":[`+strings.Repeat(item+",", n-1)+item+`]}`), openai.DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if before != "" {
			req.PreviousID = &before
		}
		c, err := s.Join(req, "", openai.DecodeOptions{})
		if err == nil && len(c.Items) < n {
			t.Errorf("%d items of %d", len(c.Items), n)
		}
		return err
	}
	refused := func(what string, err error, param string) {
		t.Helper()
		if f := fault.From(err); f == nil || f.Kind != fault.BadRequest || f.Param != param || !strings.Contains(f.Message, "10000 bytes") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := join(4, ""); err != nil {
		t.Error(err)
	}
	refused("five", join(5, ""), "input")
	refused("as many as fit beside what came before", join(4, "resp_"+id), "input")
	before := ""
	for i := range 6 {
		if err := talk(t, s, fmt.Sprint("resp_", i), before, text); err != nil {
			refused("a long conversation", err, "previous_response_id")
			return
		}
		before = fmt.Sprint("resp_", i)
	}
	t.Error("a conversation goes on for ever")
}
