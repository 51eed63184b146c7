package executor

// Queued is the number of jobs that wait for a worker.
func Queued(e *Executor) int { return len(e.jobs) }
