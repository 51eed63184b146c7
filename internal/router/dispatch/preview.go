package dispatch

import (
	"math/rand/v2"

	"github.com/portico-llm/portico/internal/router"
)

// Preview calls f with what a call could be sent to now and with the chooser of its endpoint, which is nil where a policy
// chooses. Nothing comes of it: f only looks. What it is given is valid during the call. Preview fails as Dispatch would
// when there is nothing to choose among.
func (d *Dispatcher) Preview(call *router.Call, f func(router.Chooser, *router.Query, []router.Candidate)) error {
	ep := d.current().endpoints[call.Endpoint]
	if ep == nil {
		return errNoWorkers(call.Endpoint)
	}
	a := attempts.Get().(*attempt)
	defer a.release()
	if call.Pin != nil {
		only, err := d.pinned(ep, call)
		if err != nil {
			return err
		}
		a.candidates = append(a.candidates[:0], router.Candidate{Instance: only.record, InFlight: only.inFlight.Load()})
	} else if err := d.gather(ep, call, a); err != nil {
		return err
	}
	a.query = router.Query{
		RequestID: call.RequestID, TokenIDs: call.TokenIDs, Request: call.Request, Pin: call.Pin, Random: rand.IntN,
	}
	f(ep.route.Chooser, &a.query, a.candidates)
	return nil
}
