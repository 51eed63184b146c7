package busy

import "github.com/portico-llm/portico/api/worker"

// Event takes a report as workers publish it on the topic kv_metrics, at the scope of their endpoint. Together with
// Missed and Gone it makes the Monitor a handler of that topic.
func (m *Monitor) Event(ch *worker.EventChannel, e *worker.Event) {
	k, err := worker.ParseKVMetrics(e.Payload)
	if err != nil {
		m.opts.Log.Debug("report of a worker's load can't be read", "publisher", ch.Publisher, "error", err)
		return
	}
	m.Report(ch.Scope.ID, k.Worker.WorkerID, k.Worker.DPRank,
		Load{Decode: k.ActiveDecodeBlocks, Prefill: k.ActivePrefillTokens, Used: k.KVUsedBlocks})
}

// Missed does nothing: the next report says all that counts.
func (m *Monitor) Missed(*worker.EventChannel) {}

// Gone does nothing: workers that are gone are forgotten when discovery says so.
func (m *Monitor) Gone(*worker.EventChannel) {}
