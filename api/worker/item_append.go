package worker

// AppendItem appends the body of a data frame, as a worker sends it: {"data":{annotated item},"complete_final":false}.
// With Final set it is AppendFinal.
func AppendItem(dst []byte, c Codec, it *Item) ([]byte, error) {
	if it.Final {
		return AppendFinal(dst, c), nil
	}
	w := writer{b: dst, codec: c}
	m := w.openMap()
	w.key(&m, "data")
	it.writeAnnotated(&w)
	w.key(&m, "complete_final")
	w.boolean(false)
	w.closeMap(&m)
	// Only a raw value that is no JSON can fail.
	if w.err != nil {
		return dst, w.err
	}
	return w.b, nil
}

// AppendFinal appends the body of the last data frame of a complete stream. A stream that ends without it has broken
// off.
func AppendFinal(dst []byte, c Codec) []byte {
	w := writer{b: dst, codec: c}
	m := w.openMap()
	w.key(&m, "complete_final")
	w.boolean(true)
	w.closeMap(&m)
	return w.b
}

// writeAnnotated writes the envelope with the keys that have something to say.
func (it *Item) writeAnnotated(w *writer) {
	m := w.openMap()
	if it.HasData {
		w.key(&m, "data")
		// Raw data is the client's format, otherwise it is an engine output.
		if len(it.Raw) > 0 {
			w.json(it.Raw)
		} else {
			it.Output.write(w)
		}
	}
	w.optStr(&m, "id", it.ID)
	w.optStr(&m, "event", it.Event)
	if len(it.Comment) > 0 {
		w.key(&m, "comment")
		w.strs(it.Comment)
	}
	if it.Err != nil {
		w.key(&m, "error")
		it.Err.write(w)
	}
	w.closeMap(&m)
}

// write writes an output with the keys that workers always send, then the optional ones that are set. Null and absent
// mean the same to readers; workers write nulls, so this does, too.
func (o *Output) write(w *writer) {
	m := w.openMap()
	w.key(&m, "token_ids")
	w.ids(o.TokenIDs)
	// The engine's own texts of single tokens: a worker that detokenises nothing has none.
	w.key(&m, "tokens")
	w.null()
	w.key(&m, "text")
	if o.HasText {
		w.str(o.Text)
	} else {
		w.null()
	}
	// Text, as opposed to embeddings and other modalities.
	w.key(&m, "output_type")
	w.str("text")
	w.floatField(&m, "cum_log_probs", o.CumLogProb)
	o.writeLogProbs(w, &m)
	w.key(&m, "finish_reason")
	o.writeFinish(w)
	w.key(&m, "index")
	// Workers with one choice write null for its index.
	if o.Index == 0 {
		w.null()
	} else {
		w.uint(uint64(o.Index))
	}
	o.writeOptional(w, &m)
	w.closeMap(&m)
}

// writeLogProbs writes both kinds of log probabilities, null when there are none.
func (o *Output) writeLogProbs(w *writer, m *open) {
	w.key(m, "log_probs")
	if len(o.LogProbs) == 0 {
		w.null()
	} else {
		a := w.openArray(len(o.LogProbs))
		for _, v := range o.LogProbs {
			w.elem(&a)
			w.float(v)
		}
		w.closeArray(&a)
	}
	w.key(m, "top_logprobs")
	if len(o.TopLogProbs) == 0 {
		w.null()
		return
	}
	// A list for each token, each with its alternatives.
	a := w.openArray(len(o.TopLogProbs))
	for _, at := range o.TopLogProbs {
		w.elem(&a)
		e := w.openArray(len(at))
		for i := range at {
			w.elem(&e)
			at[i].write(w)
		}
		w.closeArray(&e)
	}
	w.closeArray(&a)
}

// write writes an alternative; its bytes are left out when absent.
func (p *TopLogProb) write(w *writer) {
	m := w.openMap()
	w.key(&m, "rank")
	w.uint(uint64(p.Rank))
	w.key(&m, "token_id")
	w.uint(uint64(p.TokenID))
	w.key(&m, "token")
	if p.HasToken {
		w.str(p.Token)
	} else {
		w.null()
	}
	w.key(&m, "logprob")
	w.float(p.LogProb)
	if p.Bytes != nil {
		w.key(&m, "bytes")
		a := w.openArray(len(p.Bytes))
		for _, b := range p.Bytes {
			w.elem(&a)
			w.uint(uint64(b))
		}
		w.closeArray(&a)
	}
	w.closeMap(&m)
}

// writeFinish writes the reason's name, or the engine's message in a map.
func (o *Output) writeFinish(w *writer) {
	switch o.FinishReason {
	case FinishNone:
		w.null()
	case FinishError:
		m := w.openMap()
		w.key(&m, "error")
		w.str(o.FinishError)
		w.closeMap(&m)
	default:
		w.str(string(o.FinishReason))
	}
}

// writeOptional writes the fields that workers leave out when they have nothing to say.
func (o *Output) writeOptional(w *writer, m *open) {
	switch o.StopReason.Kind {
	case StopToken:
		w.key(m, "stop_reason")
		w.uint(uint64(o.StopReason.ID))
	case StopString:
		w.key(m, "stop_reason")
		w.str(o.StopReason.Text)
	case StopNone:
	}
	w.optJSON(m, "disaggregated_params", o.DisaggregatedParams)
	w.optJSON(m, "worker_trace_link", o.TraceLink)
	if o.Usage != nil {
		w.key(m, "completion_usage")
		o.Usage.write(w)
	}
	w.optJSON(m, "engine_data", o.EngineData)
	w.optJSON(m, "content_parts", o.ContentParts)
}

// write writes the counts, and the details that are known.
func (u *Usage) write(w *writer) {
	m := w.openMap()
	w.key(&m, "prompt_tokens")
	w.uint(uint64(u.PromptTokens))
	w.key(&m, "completion_tokens")
	w.uint(uint64(u.CompletionTokens))
	w.key(&m, "total_tokens")
	w.uint(uint64(u.TotalTokens))
	count := func(d *open, name string, n *int) {
		if n != nil {
			w.key(d, name)
			w.uint(uint64(*n))
		}
	}
	if u.CachedTokens != nil || u.PromptAudio != nil {
		w.key(&m, "prompt_tokens_details")
		d := w.openMap()
		// OpenAI's details have the key, and workers fill it with null.
		w.key(&d, "audio_tokens")
		if u.PromptAudio != nil {
			w.uint(uint64(*u.PromptAudio))
		} else {
			w.null()
		}
		count(&d, "cached_tokens", u.CachedTokens)
		w.closeMap(&d)
	}
	if u.ReasoningTokens != nil || u.CompletionAudio != nil || u.AcceptedPredictions != nil || u.RejectedPredictions != nil {
		w.key(&m, "completion_tokens_details")
		d := w.openMap()
		count(&d, "accepted_prediction_tokens", u.AcceptedPredictions)
		count(&d, "audio_tokens", u.CompletionAudio)
		count(&d, "reasoning_tokens", u.ReasoningTokens)
		count(&d, "rejected_prediction_tokens", u.RejectedPredictions)
		w.closeMap(&d)
	}
	w.closeMap(&m)
}
