package etcd

import (
	"context"
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/portico-llm/portico/internal/router"
)

// ErrCompacted is what FollowFrom returns when the revision is no longer there.
var ErrCompacted = errCompacted

// FollowFrom watches from after a revision, as a session does after its listing.
func FollowFrom(ctx context.Context, client *clientv3.Client, revision int64, emit func(router.Change)) error {
	f := &follower{opts: Options{Log: slog.New(slog.DiscardHandler)}.withDefaults(), emit: emit}
	return f.follow(ctx, client, revision)
}
