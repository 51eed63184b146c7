package main

import (
	"fmt"

	"github.com/portico-llm/portico/internal/admission"
)

// letIn makes the gate that requests pass before they are tokenised.
func (a *app) letIn() error {
	c := a.cfg.Admission
	order, err := admission.ParseOrder(c.Order)
	if err != nil {
		return fmt.Errorf("router-queue-policy: %w", err)
	}
	queue := c.MaxQueued
	if queue == 0 {
		queue = -1 // the option's zero is its default
	}
	a.entrance = admission.New(admission.Options{
		Limit: c.MaxRequests, Queue: queue, MaxWait: c.MaxWait, Order: order, Registerer: a.registry})
	a.run("admission", a.entrance.Run)
	return nil
}
