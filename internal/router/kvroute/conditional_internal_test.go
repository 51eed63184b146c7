package kvroute

import "testing"

// TestConditional compares the policies with what they stand for, at and beside their thresholds.
func TestConditional(t *testing.T) {
	half, one := 0.5, 1.0
	isl := Conditional{On: true, Policy: PolicyISL, Tokens: 2048, Share: 0.7}
	load := Conditional{On: true, Policy: PolicyLoad, PrefillBusy: &half}
	either := Conditional{On: true, Policy: PolicyEither, Tokens: 100, Share: 0.5, PrefillBusy: &half}
	spared := isl
	spared.DecodeBusy = &half
	brimming := isl
	brimming.DecodeBusy = &one
	idle, busy := &preview{prefill: 50, batch: 100}, &preview{prefill: 51, batch: 100}
	for name, tc := range map[string]struct {
		c       Conditional
		decode  preview
		prefill *preview // nil: nobody can say
		want    bool
	}{
		"mostly cached":                  {isl, preview{tokens: 1000, cached: 896}, nil, true},
		"much is left":                   {isl, preview{tokens: 100_000, cached: 64_000}, nil, false},
		"nothing is cached":              {isl, preview{tokens: 200}, nil, false},
		"as many as the threshold":       {Conditional{Policy: PolicyISL, Tokens: 100, Share: 1}, preview{tokens: 200, cached: 100}, nil, false},
		"one less":                       {Conditional{Policy: PolicyISL, Tokens: 100, Share: 1}, preview{tokens: 200, cached: 101}, nil, true},
		"as much as the share":           {isl, preview{tokens: 1000, cached: 300}, nil, false},
		"a little less":                  {isl, preview{tokens: 1000, cached: 301}, nil, true},
		"all is cached":                  {isl, preview{tokens: 500, cached: 640}, nil, true},
		"no prompt":                      {isl, preview{}, nil, true},
		"isl doesn't look at load":       {isl, preview{tokens: 200}, busy, false},
		"prefill at the threshold":       {load, preview{tokens: 9000}, idle, false},
		"prefill busy":                   {load, preview{tokens: 9000}, busy, true},
		"prefill unknown":                {load, preview{tokens: 9000}, nil, false},
		"load doesn't look at the cache": {load, preview{tokens: 100, cached: 99}, idle, false},
		"batch unknown":                  {load, preview{}, &preview{prefill: 4096}, false},
		"batch unknown, more":            {load, preview{}, &preview{prefill: 4097}, true},
		"either: cached":                 {either, preview{tokens: 100, cached: 90}, idle, true},
		"either: busy":                   {either, preview{tokens: 9000}, busy, true},
		"either: neither":                {either, preview{tokens: 9000}, idle, false},
		"decode full":                    {spared, preview{tokens: 1000, cached: 896, decoding: 51, blocks: 100}, nil, false},
		"decode at its threshold":        {spared, preview{tokens: 1000, cached: 896, decoding: 50, blocks: 100}, nil, true},
		"decode doesn't say":             {spared, preview{tokens: 1000, cached: 896, decoding: 51}, nil, true},
		"decode brimming":                {brimming, preview{tokens: 1000, cached: 896, decoding: 100, blocks: 100}, nil, true},
	} {
		got := tc.c.alone(&tc.decode, func() (*preview, bool) { return tc.prefill, tc.prefill != nil })
		if got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestConditionalCheck(t *testing.T) {
	for _, c := range []Conditional{{Policy: "never"}, {On: true, Policy: PolicyLoad}, {On: true, Policy: PolicyEither}} {
		if c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if err := DefaultConditional().Check(); err != nil {
		t.Error(err)
	}
}
