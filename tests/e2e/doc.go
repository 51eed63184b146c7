// Package e2e tests a frontend against real parts: Dynamo's mocker, a worker with a real model, a NATS server, etcd,
// and the official clients. `make e2e` installs the peers, builds bin/frontend and runs them; where the peers are not
// installed the tests say so and are left out.
//
// PORTICO_E2E_FRONTEND chooses the frontend under test: portico (the default; bin/frontend must be built) or dynamo,
// which checks the tests themselves against the reference. Where the reference is known to behave otherwise, a test
// says so and skips that part. PORTICO_VENV names a ready environment for the Python peers.
//
// Tests run one stack at a time: the peers are heavy and the bounds are in seconds.
package e2e
