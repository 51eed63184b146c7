package pipeline

import (
	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/constraint"
)

// constrain reads what the request wants of its worker. When no worker has the taints that it requires, that is said
// before anything is tokenised; workers may change theirs, so the client may come again.
func (p *Pipeline) constrain(out *Prepared, x *openai.NvExt) error {
	if x == nil || len(x.RoutingConstraints) == 0 {
		return nil
	}
	wants, err := constraint.Parse(x.RoutingConstraints)
	if err != nil {
		return err
	}
	if out.wants = wants; len(wants.Required) == 0 {
		return nil
	}
	if !p.taints.AnyAdmitted(wants, out.Set.Endpoint, out.Set.Serves) {
		return errTaints("worker")
	}
	// Where the workers share the work, both must do; decode workers that read prompts themselves can go without.
	if pool := out.Set.Prefill(); pool != nil && out.Set.NeedsPrefill() &&
		!p.taints.AnyAdmitted(wants, pool.Endpoint, pool.Serves) {
		return errTaints("prefill worker")
	}
	return nil
}

// errTaints is the failure of a request whose taints none of some workers has.
func errTaints(workers string) *fault.Error {
	f := fault.New(fault.Unavailable, "No %s of the model has the taints that the request requires", workers)
	f.Param = "nvext.routing_constraints.required_taints"
	return f
}

// narrow tells the router what the request wants of its worker, as far as the call's endpoint goes.
func (p *Pipeline) narrow(call *router.Call, req *Prepared) {
	wants, endpoint := req.wants, call.Endpoint
	if wants.IsZero() {
		return
	}
	if serves := call.Serves; len(wants.Required) > 0 {
		call.Serves = func(id uint64) bool { return serves(id) && wants.Admits(p.taints.Of(endpoint, id)) }
	}
	if len(wants.Preferred) > 0 {
		call.Factor = func(id uint64) float64 { return wants.Factor(p.taints.Of(endpoint, id)) }
	}
}
