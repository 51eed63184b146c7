package dispatch

import (
	"context"
	"slices"

	"github.com/portico-llm/portico/internal/router"
)

// bound chooses for a call with a session: the instance that the session is bound to, as long as it can be had, or any
// other, to which it is bound from then on. A session whose instance is lost, or has failed this call, is bound anew; so
// is one whose instance is full, unless it is bound hard. The session's last call ends the binding.
func (d *Dispatcher) bound(ctx context.Context, ep *endpoint, call *router.Call, a *attempt) (in *instance, err error) {
	sessions := ep.route.Sessions
	if call.SessionFinal {
		defer func() {
			if err == nil {
				sessions.End(call.Session)
			}
		}()
	}
	var old *uint64
	if id, ok := sessions.Find(call.Session); ok {
		old = &id
		in, err := d.home(ep, call, a, id)
		if err != nil {
			return nil, err
		}
		if in != nil {
			return d.choose(ctx, ep, call, a, in)
		}
	}
	in, err = d.choose(ctx, ep, call, a, nil)
	if err == nil && !call.SessionFinal {
		sessions.Bind(call.Session, old, in.record.InstanceID, a.chosen.Rank)
	}
	return in, err
}

// home returns the instance of a session, or nil when another has to take its place. It fails when the session has to
// wait for its instance.
func (d *Dispatcher) home(ep *endpoint, call *router.Call, a *attempt, id uint64) (*instance, error) {
	in, now := ep.find(id), d.now()
	switch {
	case in == nil, call.Serves != nil && !call.Serves(id), slices.Contains(call.Exclude, id), a.has(in),
		in.aside(&in.quarantined, now):
		return nil, nil
	case !in.full(now, d.busy(call.Endpoint)):
		return in, nil
	case ep.route.Sessions.Hard():
		return nil, d.errBusy("The session's worker is busy, please try again later")
	}
	return nil, nil
}
