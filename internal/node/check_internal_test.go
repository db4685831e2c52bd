package node

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindingsOfAKindAreNotAllTold(t *testing.T) {
	var told []string
	a := alike{found: func(f Finding) { told = append(told, f.Problem) }}
	for i := range 50 {
		a.add(Finding{Problem: fmt.Sprintf("id %d is that of another", i)})
		if i%10 == 0 {
			a.add(Finding{Problem: fmt.Sprintf("is of no known kind %d", i)})
		}
	}
	a.end()
	require.Len(t, told, 16)
	require.Equal(t, "and 40 more of this kind, the last one: id 49 is that of another", told[15])
}
