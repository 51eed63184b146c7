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
		f := fault.New(fault.Unavailable, "No worker of the model has the taints that the request requires")
		f.Param = "nvext.routing_constraints.required_taints"
		return f
	}
	return nil
}

// narrow tells the router what the request wants of its worker.
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
