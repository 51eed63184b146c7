package etcd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/portico-llm/portico/internal/router"
)

// Events of one answer keep their order's meaning: last state wins, and a deletion before a put is not lost.
func TestChange(t *testing.T) {
	put := func(key, value string) *clientv3.Event {
		return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value)}}
	}
	del := func(key string) *clientv3.Event {
		return &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key)}}
	}
	for _, tc := range []struct {
		name    string
		events  []*clientv3.Event
		put     []router.Record
		removed []string
	}{
		{"none", nil, nil, nil},
		{"put twice", []*clientv3.Event{put("a", "1"), put("a", "2")}, []router.Record{{Key: "a", Value: []byte("2")}}, nil},
		{"put, delete", []*clientv3.Event{put("a", "1"), del("a")}, nil, []string{"a"}},
		{"delete, put", []*clientv3.Event{del("a"), put("a", "1")}, []router.Record{{Key: "a", Value: []byte("1")}}, []string{"a"}},
		{
			"mixed", []*clientv3.Event{put("a", "1"), put("b", "1"), del("a"), put("c", "1"), put("a", "2")},
			[]router.Record{{Key: "b", Value: []byte("1")}, {Key: "c", Value: []byte("1")}, {Key: "a", Value: []byte("2")}},
			[]string{"a"},
		},
	} {
		got := change(tc.events)
		if len(got.Put) == 0 {
			got.Put = nil
		}
		if d := cmp.Diff(router.Change{Put: tc.put, Removed: tc.removed}, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}
